"""``python -m nvdla`` is the ``nvdla`` command."""

import sys

from nvdla.cli.entry import main

sys.exit(main())
