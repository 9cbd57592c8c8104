"""How hard a prompt is: categories, rules, and the learned part."""
