"""What a translation must or may not have: terms, phrases, links and placeholders that stay."""
