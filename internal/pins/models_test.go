package pins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/planfile"
	"penstock.example/internal/proctest"
	"penstock.example/internal/solver"
	"penstock.example/remat"
)

// shares are the limits of the models' chains, as parts of the way from the least limit to the peak
// without recomputation.
var shares = []float64{0.1, 0.3, 0.6}

// quick are the networks that a quick run measures, too.
var quick = []string{"mlp", "resnet20", "densenet121", "unet", "gpt"}

// TestModels measures networks and compares bytes with the table. Then it solves the chains of
// testdata/models, with recorded times, under three limits.
//
// A line of testdata/models.txt has a model; its least limit and its peak without recomputation, in
// bytes; the times of the plans under the three limits, in microseconds; and the flags of penstock
// profile. Bytes and times may only fall. Workspaces depend on the kernels, so TestModels uses the
// kernels of TestRuns. If the fingerprint differs, it compares only the times of plans.
func TestModels(t *testing.T) {
	if testing.Short() {
		t.Skip("measures networks")
	}
	const table = "testdata/models.txt"
	runner := proctest.NewRunner(t, build(t), kernels...)
	_, known := fixedKernels(t)
	if !known && !*must.Update {
		t.Log("only times of plans are compared")
	}
	var out []string
	for _, line := range read(t, table) {
		name, rest, _ := strings.Cut(line, " ")
		var least, greatest int64
		var times [3]float64
		if _, err := fmt.Sscan(rest, &least, &greatest, &times[0], &times[1], &times[2]); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		flags := strings.Fields(rest)[5:]
		t.Run(name, func(t *testing.T) {
			lowest, all := least, greatest
			if draws.Full || *must.Update || slices.Contains(quick, name) {
				r := runner.Run(t, append([]string{"profile", "--repeats", "1", "--format", "json",
					"--model", name}, flags...)...)
				if r.Code != 0 {
					t.Fatalf("exit code %d\n%s", r.Code, r.Stderr)
				}
				lowest, all = bounds(t, []byte(r.Stdout))
			}
			if known && !*must.Update && (lowest > least || all > greatest) {
				t.Errorf("takes %d to %d bytes, was %d to %d", lowest, all, least, greatest)
			}
			saved := must.Get(os.ReadFile(filepath.Join("testdata/models", name+".json")))(t)
			c := must.Get(planfile.ParseChain(saved))(t)
			low, high := bounds(t, saved)
			for i, share := range shares {
				limit := low + int64(share*float64(high-low))
				p := solve(t, c, limit, times[i])
				times[i] = p.Time
			}
			out = append(out, fmt.Sprintf("%s %d %d %.17g %.17g %.17g %s", name, lowest, all, times[0],
				times[1], times[2], strings.Join(flags, " ")))
		})
	}
	write(t, table, out)
}

// bounds returns the least limit of a chain and its peak without recomputation, in bytes.
func bounds(t *testing.T, file []byte) (least, greatest int64) {
	t.Helper()
	c := must.Get(planfile.ParseChain(file))(t)
	p, _, err := solver.Least(c)
	must.Do(t, err)
	return p.Peak, must.Get(remat.Check(c, remat.None(len(c.Layers))))(t).Peak
}
