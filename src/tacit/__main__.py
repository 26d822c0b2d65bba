"""`python -m tacit` is `tacit`."""

from tacit.cli.main import main

if __name__ == "__main__":
    main()
