"""The commit log: its files, its records, and walking over them, damaged ones too."""
