package command

import (
	"encoding/json"
	"strings"
	"testing"
)

// held is the most bytes that a process of its own held while it trained.
func held(t *testing.T, args string) int64 {
	t.Helper()
	r := spawned(t, nil, append(strings.Fields(args), "--format", "json")...)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var done doneLine
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &done); err != nil {
		t.Fatalf("%v in %s", err, r.stdout)
	}
	return done.PeakResidentBytes
}

// A process takes little more than its limit and what a process takes that trains next to nothing:
// blocks that were freed, by training, by measuring and by planning, do not stay with it.
func TestProcessKeepsTheLimit(t *testing.T) {
	full(t)
	const limit, more = 100 << 20, 16 << 20
	base := held(t, "train --model mlp --data synthetic --batch 8 --chunks 1 --steps 1")
	if base == 0 {
		t.Skip("the system does not tell what is resident")
	}
	got := held(t, "train --model resnet20 --data synthetic --batch 128 --chunks 1 --memory-limit 100MiB "+
		"--checkpoint optimal --steps 2")
	if got > base+limit*11/10+more {
		t.Errorf("%d MiB with a limit of %d MiB, and %d MiB with next to nothing", got>>20,
			int64(limit)>>20, base>>20)
	}
}
