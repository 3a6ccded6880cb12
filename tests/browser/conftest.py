import sys
from pathlib import Path

# pytest does not put this folder on the path, so that the tests could not import lab.py.
sys.path.insert(0, str(Path(__file__).parent))
