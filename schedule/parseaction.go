package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseAction reads the text form of an action, strictly: what it accepts is what [Action.String] writes. Numbers are
// decimal, without sign or leading zeros, and below 2^31. A transfer may skip stages (0>3F2), but an activation
// only moves to a later stage and a gradient only to an earlier one. The error quotes the text.
func ParseAction(text string) (Action, error) {
	bad := func(reason string) (Action, error) {
		return Action{}, fmt.Errorf("schedule: action %q: %s", text, reason)
	}
	at := strings.IndexAny(text, "FRB")
	if at < 0 {
		return bad("want a letter F, R or B between stage and micro-batch, as in 0F2 or 0>1F2")
	}
	source, stage, transfer := strings.Cut(text[:at], ">")
	if !transfer {
		source, stage = "0", source
	}
	var a Action
	for _, part := range []struct {
		name, digits string
		into         *int
	}{
		{"source stage", source, &a.Source},
		{"stage", stage, &a.Stage},
		{"micro-batch", text[at+1:], &a.MicroBatch},
	} {
		n, err := parseNumber(part.digits)
		if err != nil {
			return bad(part.name + ": " + err.Error())
		}
		*part.into = n
	}
	switch letter := text[at]; {
	case !transfer && letter == 'F':
		a.Kind = Forward
	case !transfer && letter == 'R':
		a.Kind = Recompute
	case !transfer && letter == 'B':
		a.Kind = Backward
	case letter == 'F' && a.Source < a.Stage:
		a.Kind = Activation
	case letter == 'B' && a.Source > a.Stage:
		a.Kind = Gradient
	case letter == 'F':
		return bad("an activation moves to a later stage")
	case letter == 'B':
		return bad("a gradient moves to an earlier stage")
	default:
		return bad("a recomputation is not a transfer")
	}
	return a, nil
}

// parseNumber reads the one way that a number is written in the text form.
func parseNumber(digits string) (int, error) {
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, fmt.Errorf("%q is not a decimal number below 2^31 without leading zeros", digits)
	}
	return int(n), nil
}
