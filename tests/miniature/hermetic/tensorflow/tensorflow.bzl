"""What BUILD files of this tree share."""

VERSION = "99.18.0"
