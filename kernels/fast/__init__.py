"""Forms of rules that are fast, and equal to the rule under a stated bound."""
