"""Files that a test writes."""


def write(path, text):
    path.write_text(text)
    return str(path)
