"""What a message must name: values, places and names, with any words between them."""

import re


def naming(facts):
    """Return the pattern of a message that has these facts, in this order: words with spaces
    between.
    """
    return "(?s)" + ".*".join(re.escape(fact) for fact in facts.split())


def tells(message, facts):
    """Say whether a message has these facts, in this order."""
    return re.search(naming(facts), str(message)) is not None


class Telling(str):
    """Equal to every text that has these facts, in this order: for a text within other values."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return isinstance(other, str) and tells(other, self)
