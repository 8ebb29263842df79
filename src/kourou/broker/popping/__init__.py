"""Pop consumption: messages that are invisible until they are acknowledged or revived."""
