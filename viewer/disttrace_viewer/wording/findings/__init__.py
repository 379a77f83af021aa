"""The sentences of findings, by the rule that finds them: values in, English out."""
