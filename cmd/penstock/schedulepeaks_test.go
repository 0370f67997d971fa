package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// What compare says that devices hold is what training holds, but for what a chain does not say. That is
// known to the byte where all forwards come first.
func TestComparedPeaksAreThoseOfTraining(t *testing.T) {
	const rows = 64
	chain := filepath.Join(t.TempDir(), "chain.json")
	must(t, "profile", "--model", "mlp", "--batch", fmt.Sprint(rows), "--repeats", "1", "--out", chain)
	for _, chunks := range []int64{1, 4} {
		var lines []comparedSchedule
		if err := json.Unmarshal([]byte(must(t, "schedule", "compare", "--format", "json", "--stages", "2", "--chunks", fmt.Sprint(chunks), "--profile", chain).stdout), &lines); err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			got := must(t, "train", "--model", "mlp", "--data", "synthetic", "--optimizer", "sgd", "--momentum", "0", "--steps", "1", "--format", "json", "--balance", "3,3",
				"--batch", fmt.Sprint(rows*chunks), "--chunks", fmt.Sprint(chunks), "--schedule", l.Schedule, "--checkpoint", "never")
			var step stepLine
			first, _, _ := strings.Cut(got.stdout, "\n")
			if err := json.Unmarshal([]byte(first), &step); err != nil {
				t.Fatal(err)
			}
			between, output := int64(rows*256*4), int64(rows*10*4) // bytes between the stages, and of the output
			// A stage of one unit holds the gradient that it is given until its backward ends. The loss makes
			// the gradient of the output in the backward, not at once, and keeps itself and the sum of
			// weights. The targets are on the last device.
			want := []int64{l.Peak[0] + between, l.Peak[1] + 8*rows*chunks - (chunks-1)*output + 8*chunks}
			for device, peak := range step.PeakBytes {
				if l.Schedule == "gpipe" && peak != want[device] {
					t.Errorf("%d micro-batches, device %d: training holds %d bytes, want %d: compare says %d", chunks, device, peak, want[device], l.Peak[device])
				}
				if apart := peak - l.Peak[device]; max(apart, -apart) > 3*between {
					t.Errorf("%s, %d micro-batches, device %d: training holds %d bytes, compare says %d", l.Schedule, chunks, device, peak, l.Peak[device])
				}
			}
		}
	}
}
