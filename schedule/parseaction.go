package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseAction reads the text form of an action, strictly as [Action.String] writes it. Numbers are
// decimal, without sign or leading zeros, and below 2^31. A transfer may skip stages (0F2>3,
// 0>3F2), but an activation only moves to a later stage and a gradient only to an earlier one. The
// error quotes the text.
func ParseAction(text string) (Action, error) {
	a, err := parseAction(text)
	if err != nil {
		return Action{}, fmt.Errorf("schedule: %w", err)
	}
	return a, nil
}

func parseAction(text string) (Action, error) {
	bad := func(reason string) (Action, error) {
		return Action{}, fmt.Errorf("action %q: %s", text, reason)
	}
	if stage, found := strings.CutSuffix(text, reduceWord); found {
		n, err := parseNumber(stage)
		if err != nil {
			return bad("stage: " + err.Error())
		}
		return Action{Kind: Reduce, Stage: n}, nil
	}
	at := strings.IndexAny(text, "FRBIW")
	if at < 0 {
		return bad("want a letter F, R, B, I or W between stage and micro-batch, as in 0F2, 0F2>1 or 0>1F2, or 0RED")
	}
	var a Action
	peer, stage, receive := strings.Cut(text[:at], ">")
	if !receive {
		stage, peer = peer, "0"
	}
	microBatch, target, send := strings.Cut(text[at+1:], ">")
	if send {
		peer = target
	}
	if send && receive {
		return bad("want either a stage that is sent to, as in 0F2>1, or one that is received from, as in 0>1F2")
	}
	for _, part := range []struct {
		name, digits string
		into         *int
	}{
		{"other stage", peer, &a.Peer},
		{"stage", stage, &a.Stage},
		{"micro-batch", microBatch, &a.MicroBatch},
	} {
		n, err := parseNumber(part.digits)
		if err != nil {
			return bad(part.name + ": " + err.Error())
		}
		*part.into = n
	}
	letter := text[at]
	switch {
	case !send && !receive:
		a.Kind = map[byte]Kind{'F': Forward, 'R': Recompute, 'B': Backward, 'I': BackwardInput,
			'W': BackwardWeight}[letter]
		return a, nil
	case letter == 'R':
		return bad("a recomputation is not a transfer")
	case letter == 'I' || letter == 'W':
		return bad("gradients are sent and received as B")
	}
	from, to := a.Stage, a.Peer
	a.Kind = map[byte]Kind{'F': SendActivation, 'B': SendGradient}[letter]
	if receive {
		from, to = to, from
		a.Kind++
	}
	switch {
	case letter == 'F' && from >= to:
		return bad("an activation moves to a later stage")
	case letter == 'B' && from <= to:
		return bad("a gradient moves to an earlier stage")
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
