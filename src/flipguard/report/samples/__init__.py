"""The samples themselves: images, texts or links, from wherever a user keeps them."""
