package report_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/must"
	"penstock.example/internal/report"
	"penstock.example/schedule"
)

// written is a page as a file has it.
func written(t testing.TB, p report.Page) string {
	t.Helper()
	return string(must.Get(p.HTML())(t))
}

// What a run keeps comes back whole: the page of the copy is the page of the run.
func TestRunFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), report.FileName)
	for _, change := range []func(*report.Run){
		func(*report.Run) {},
		func(r *report.Run) { *r = report.Run{Title: "<b>"} },
		func(r *report.Run) { r.Plan, r.Limits = nil, []int64{5, 0} },
		func(r *report.Run) { r.Ran, r.Layers[1].Of = nil, 2 },
		func(r *report.Run) { r.Ended = &report.Ended{How: "failed", Why: "a reason", Time: 5.5} },
		func(r *report.Run) { *r = planPage(t, 3, 5).Run },
	} {
		want := page(t, 3, 5)
		change(&want.Run)
		must.Do(t, want.Run.WriteFile(path))
		run := must.Get(report.ReadFile(path))(t)
		if diff := cmp.Diff(want.Run.Chains, run.Chains); diff != "" {
			t.Error(diff)
		}
		got := want
		got.Run = run
		if diff := cmp.Diff(written(t, want), written(t, got)); diff != "" {
			t.Error(diff)
		}
	}
}

// A file of something else is refused with its path.
func TestRunFileFromAnywhere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, report.FileName)
	for name, text := range map[string]string{
		"version": `{"version":2}`,
		"action":  `{"version":1,"ran":{"workers":1,"events":[[0,"<b>",5,9,0]]}}`,
		"plan":    `{"version":1,"plan":"program whole"}`,
		"chain":   `{"version":1,"costs":[{"stage":0}]}`,
	} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o666))
		if _, err := report.ReadFile(path); err == nil ||
			!strings.HasPrefix(err.Error(), "report: "+path+": ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := report.ReadFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// data is what a page's script gets.
func data(t testing.TB, page string) (out struct {
	View struct {
		Devices []struct {
			Stages     []int
			Limit      int64
			Predicted  int64
			Idle       float64
			RanIdle    float64 `json:"ran_idle"`
			Recomputed int
		}
		Planned struct{ Events [][5]any }
		Times   string
		Layers  []struct {
			Name        string
			Stage       int
			Again, Runs int
		}
	}
}) {
	t.Helper()
	_, rest, _ := strings.Cut(page, `<script type="application/json" id="data">`)
	text, _, ok := strings.Cut(rest, "</script>")
	if !ok {
		t.Fatal("no data")
	}
	must.Do(t, json.Unmarshal([]byte(text), &out))
	return out
}

// Shares and sums are those of the timelines, and layers are where the plan has them.
func TestView(t *testing.T) {
	content := page(t, 4, 8)
	r := content.Run
	r.Limits = []int64{1 << 30}
	content.Run = r
	got := data(t, written(t, content)).View
	planned, _, err := r.Plan.Timeline()
	must.Do(t, err)
	for w, d := range got.Devices {
		limit := int64(64 << 20)
		if w == 0 {
			limit = 1 << 30
		}
		if d.Idle != planned.Idle(w) || d.RanIdle != r.Ran.Idle(w) || d.Limit != limit ||
			d.Predicted != int64(50+w)<<20 ||
			d.Recomputed != 12 || len(d.Stages) != 1 || d.Stages[0] != w {
			t.Errorf("device %d: %+v", w, d)
		}
	}
	if got.Times != "predicted" || len(got.Planned.Events) != len(planned.Events) {
		t.Errorf("%d actions planned with times %s", len(got.Planned.Events), got.Times)
	}
	for i, l := range got.Layers {
		if l.Stage != i/3 || l.Again != 4 || l.Runs != 12 {
			t.Errorf("layer %d: %+v", i, l)
		}
	}
}

// Without predictions the plan is shown with the medians of what ran.
func TestMedians(t *testing.T) {
	p := oneFOneBPlan(t, 1, 3, false)
	at := schedule.Timeline{Workers: 1}
	for i, us := range []int{100, 500, 200} {
		start := time.Duration(i) * time.Second
		at.Events = append(at.Events, schedule.Event{Action: schedule.Action{Kind: schedule.Forward,
			MicroBatch: i}, Start: start, End: start + time.Duration(us)*time.Microsecond})
	}
	got := data(t, written(t, report.Page{Run: report.Run{Plan: p, Ran: &at}})).View
	if got.Times != "median" {
		t.Errorf("times are %s", got.Times)
	}
	for _, e := range got.Planned.Events {
		want := 0.0 // of what did not run
		if strings.HasPrefix(e[1].(string), "0F") {
			want = 200e3
		}
		if took := e[3].(float64) - e[2].(float64); took != want {
			t.Errorf("%s takes %v ns, want %v", e[1], took, want)
		}
	}
	if got := data(t, written(t, report.Page{Run: report.Run{Plan: p}})).View; got.Times != "unit" {
		t.Errorf("times are %s", got.Times)
	}
}

// The plan's point is on the curve of the best plans or above it.
func TestCurve(t *testing.T) {
	c := report.NewCurve(0, chain(), best(t), oneFOneBPlan(t, 1, 4, true))
	if len(c.Best) < 2 || len(c.Chosen) != 2 { // micro-batches that are recomputed, and those that are not
		t.Fatalf("%+v", c)
	}
	for _, p := range c.Chosen {
		for _, b := range c.Best {
			if p.Bytes <= b.Bytes && p.Time < b.Time {
				t.Errorf("%+v beats %+v", p, b)
			}
		}
	}
	if c.Chosen[0].Time != c.Once && c.Chosen[1].Time != c.Once {
		t.Errorf("no micro-batch takes %v: %+v", c.Once, c.Chosen)
	}
	if c := report.NewCurve(0, chain(), nil, nil); len(c.Chosen) != 0 {
		t.Errorf("%+v", c)
	}
}
