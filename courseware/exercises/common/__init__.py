"""What exercises of several lessons share. A lesson's exercises import this and never another lesson's."""
