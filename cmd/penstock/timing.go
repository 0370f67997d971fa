package main

import (
	"fmt"
	"io"
	"time"

	"penstock.example/profile"
)

// clock times layers. Nil is the profile's own clock. Tests set one that does not depend on the
// machine.
var clock func() time.Duration

// warnOfTiming says that measured times are uncertain, if they are, and what to do about it.
func warnOfTiming(w io.Writer, t profile.Timing, remedy string) (told bool) {
	text := t.Warning()
	if text != "" {
		fmt.Fprintf(w, "measured times are uncertain: %s; %s\n", text, remedy)
	}
	return text != ""
}

// What to do about uncertain times.
const (
	measureAgain = "measure again when nothing else runs, or with more --repeats"
	profileAgain = "penstock profile again when nothing else runs, or with more --repeats"
	cutAgain     = "the balance may not be the best; train when nothing else runs, or give a --balance that penstock balance finds with more --repeats"
	bothAgain    = "the balance may not be the best, and more than needed may be recomputed; limits hold; train when nothing else runs"
	searchAgain  = "limits hold, but another plan may be faster; plan when nothing else runs, or with more --repeats"
	planAgain    = "limits hold, but more than needed may be recomputed; train when nothing else runs"
)
