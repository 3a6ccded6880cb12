import sys
from pathlib import Path

# lab.py is beside this file, which pytest does not put on the path; screenshots.py has it there by itself.
sys.path.insert(0, str(Path(__file__).parent))
