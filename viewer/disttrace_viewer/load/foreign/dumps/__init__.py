"""Files of Flight Recorder: pickles that may be anybody's, each dump, and those of one moment."""
