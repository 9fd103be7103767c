"""What the tests of several rooms need: networks made by hand, references, planted faults, guards."""
