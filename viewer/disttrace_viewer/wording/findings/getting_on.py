"""What is said of a wait during which all others get on."""

HINT = (
    "Nothing stands still: everybody waited for gets on with calls made before. If the wait is not"
    " meant to be, see whether they come to it, or passed it over."
)
