"""``python -m nvdla`` is the ``nvdla`` command."""

import sys

from nvdla.cli.main import main

sys.exit(main())
