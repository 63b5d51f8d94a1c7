"""`python -m flipguard`."""

from flipguard.cli import main

if __name__ == "__main__":
    main()
