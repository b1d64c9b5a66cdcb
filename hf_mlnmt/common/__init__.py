"""What every room uses: errors for users, files, tables, folders of models, languages, the machine."""
