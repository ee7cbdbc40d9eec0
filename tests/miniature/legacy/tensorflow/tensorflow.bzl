"""What BUILD files of this tree share."""

VERSION = "99.15.0"
