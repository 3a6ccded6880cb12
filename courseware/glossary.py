"""Words and symbols, as code and prose use them: {name: (lesson that introduces it, meaning)}, from glossary.toml."""

import tomllib
from pathlib import Path

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SYMBOLS, TERMS = ({name: tuple(entry) for name, entry in _TABLES[kind].items()} for kind in ("symbols", "terms"))
GLOSSARY = SYMBOLS | TERMS
