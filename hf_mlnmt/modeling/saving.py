"""The code of a published model goes wherever the pointer to it, config.json's `auto_map`, goes.

Transformers copies code only of classes that were marked for it (`register_for_auto_class`); a published model that the
installed package has loaded keeps the pointer, and what is saved of it could not be loaded without the package.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files


def copy_code(pointers: Mapping[str, Any], source: Path, target: Path) -> dict[str, Any]:
    """Copy what `auto_map` points to, with all that it imports, from one folder into another; returns the new pointers.

    pointers: Auto class -> "file.Class", or "owner/name--file.Class", which then no longer needs that repository. A
    pointer to code that is not in `source` stays as it is.
    """
    found = dict(pointers)
    for auto_class, pointer in pointers.items():
        name = pointer.split("--")[-1] if isinstance(pointer, str) else ""
        file = source / f"{name.partition('.')[0]}.py"
        if name and file.is_file():
            target.mkdir(parents=True, exist_ok=True)
            for path in {file, *map(Path, get_relative_import_files(file))}:
                shutil.copyfile(path, target / path.name)
            found[auto_class] = name
    return found
