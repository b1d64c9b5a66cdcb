"""Files, keys, errors, tables, model folders and languages, for all rooms; imports none but modeling."""
