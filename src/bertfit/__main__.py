"""`python -m bertfit`."""

import sys

from bertfit.cli import main

sys.exit(main())
