package command

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/report"
)

// A run's page has its step as planned and as it ran, its numbers, its layers with what was measured, and the
// curve of each stage. A run that has only its numbers has a page, too.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	out, page := filepath.Join(dir, "run"), filepath.Join(dir, "report.html")
	must(t, with(small, "--steps", "5", "--stages", "2", "--checkpoint", "optimal", "--schedule", "1f1b",
		"--memory-limit", "40MiB", "--out", out)...)
	run := noerr.Get(report.ReadFile(filepath.Join(out, report.FileName)))(t)
	if run.Title != "mlp on synthetic" || run.Last != 5 || run.Step != 3 || run.Ran == nil ||
		run.Ran.Workers != 2 || len(run.Layers) != 6 || len(run.Chains) != 2 || len(run.Limits) != 2 ||
		!strings.HasPrefix(run.Facts[0].Value, "penstock train --model mlp --data synthetic ") {
		t.Errorf("%+v", run)
	}
	if got, want := len(run.Ran.Events), len(run.Plan.Program.Workers[0])+
		len(run.Plan.Program.Workers[1]); got != want {
		t.Errorf("%d actions ran, and %d were planned", got, want)
	}
	if run.Planned == nil || run.Planned.Makespan() == 0 || run.Planned.Events[0].Live == 0 {
		t.Errorf("planned: %+v", run.Planned)
	}
	r := must(t, "report", out, "--out", page)
	if want := "mlp on synthetic: 5 steps\n"; r.stdout != want || r.stderr != "" {
		t.Errorf("%+v, want %q", r, want)
	}
	text := mustRead(t, page)
	for _, want := range []string{"<!doctype html>", `"best":[{"bytes":`, `"chosen":[{"bytes":`,
		`"times":"predicted"`, `"title":"mlp on synthetic"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s", want)
		}
	}
	noerr.Do(t, os.Remove(filepath.Join(out, report.FileName)))
	if r := must(t, "report", out, "--out", page); r.stdout != "run: 5 steps\n" {
		t.Errorf("%+v", r)
	}
}

// The recorded step is a full batch if the run takes one, and its page says the rows.
func TestRecordedStep(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	for _, row := range []struct {
		train, flags string
		step         int64
		rows         int
	}{
		{"320", "--epochs 1", 2, 128}, // the third step has the 64 rows that are left
		{"320", "--epochs 2", 4, 128},
		{"320", "--epochs 2 --accumulate 2", 3, 128}, // of two steps in an epoch the second has 64 rows
		{"100", "--steps 1", 1, 100},
	} {
		os.RemoveAll(out)
		args := append(strings.Fields(row.flags), "--data-set", "train="+row.train, "--out", out)
		must(t, with(small, args...)...)
		run, err := report.ReadFile(filepath.Join(out, report.FileName))
		if err != nil || run.Step != row.step || run.Rows != row.rows ||
			len(run.Plan.Stages[0].MicroBatches) != 4 {
			t.Errorf("%+v: step %d with %d rows, %v", row, run.Step, run.Rows, err)
		}
	}
}

// A run of several processes under another policy keeps what its page needs.
func TestReportOfProcesses(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	mustTrain(t, launched(2, with(small, "--steps", "4", "--out", out)...)...)
	run, err := report.ReadFile(filepath.Join(out, report.FileName))
	if err != nil || len(run.Plan.Devices) != 2 || run.Ran.Workers != 2 || run.Layers[1].Forward <= 0 ||
		len(run.Chains) != 0 || !strings.Contains(run.Facts[0].Value, "penstock train --model mlp") {
		t.Errorf("%+v, %v", run, err)
	}
}

// The page of a plan has the step as it is planned, with the bytes of each device, its layers, the schedules
// that were searched and how the step depends on the limit; of a model, also where the step that will run has
// another program than was searched, and of a machine with links.
func TestReportOfAPlan(t *testing.T) {
	dir := t.TempDir()
	file, page, chain := filepath.Join(dir, "plan.json"), filepath.Join(dir, "plan.html"),
		filepath.Join(dir, "mlp.json")
	must(t, "profile", "--model", "mlp", "--batch", "16", "--repeats", "1", "--out", chain)
	machine := textFile(t, "machine.json", `{"version":1,
		"devices":[{"name":"a gpu","count":2,"bytes":80000000,"threads":1,"speed":2}],
		"links":[{"latency_us":50,"bytes_per_second":1e9}]}`)
	for title, args := range map[string]string{
		"resnet20, planned": "--model resnet20 --set width=4 --data synthetic --data-set size=16 --batch 8 " +
			"--chunks 4 --devices 2 --schedule zb-v,1f1b --memory-limit 600KiB --repeats 1",
		"mlp, batch of 16, planned": chain + " --machine " + machine + " --batch 16 --schedule gpipe,1f1b",
	} {
		line := planLine(t, with(strings.Fields(args), "--out", file)...)
		text := mustRead(t, file)
		var kept planJSON
		noerr.Do(t, json.Unmarshal(text, &kept))
		run := kept.Page
		if line.Page != nil || run == nil || run.Title != title || run.Plan == nil || run.Planned == nil ||
			len(run.Others) != 2 || len(run.Layers) == 0 ||
			!strings.HasPrefix(run.Facts[0].Value, micros(line.Step)+"; ") {
			t.Fatalf("%s: %+v", title, run)
		}
		most := make([]int64, len(run.Plan.Devices))
		for _, e := range run.Planned.Events {
			most[e.Worker] = max(most[e.Worker], e.Live)
		}
		for w, d := range run.Plan.Devices {
			if most[w] == 0 || most[w] > d.Peak || d.Peak != line.Peak[w] {
				t.Errorf("%s: %s holds %d bytes after an action, %d at most, and the plan says %d", title,
					d.Name, most[w], d.Peak, line.Peak[w])
			}
		}
		if took := us(run.Planned.Makespan()); took != line.Step || line.LowerBound > line.Step {
			t.Errorf("%s: a timeline of %v us, a step of %v, none below %v", title, took, line.Step,
				line.LowerBound)
		}
		if r := must(t, "report", file, "--out", page); r.stdout != title+"\n" {
			t.Errorf("%s: %+v", title, r)
		}
		shown, err := os.ReadFile(page)
		if err != nil || !strings.Contains(string(shown), `"best":[{"bytes":`) {
			t.Errorf("%s: the page has no curve, %v", title, err)
		}
	}
	refuses(t, []string{"report", file, "--out", file}, exitUsage, "would be overwritten")
	for text, want := range map[string]string{"{": "unexpected end of JSON input",
		`{"balance":[1]}`: "there is no plan in it to show", `{"page":{"version":9}}`: "version 9"} {
		refuses(t, []string{"report", textFile(t, "a.json", text), "--out", page}, exitUsage, want)
	}
}

// A run keeps how it ended, also where it has recorded no step, and does not lose the step that an
// earlier part has recorded. Layers that are frozen have the time of their forward.
func TestRunsKeepHowTheyEnded(t *testing.T) {
	dir := t.TempDir()
	kept := func(out string) report.Run {
		t.Helper()
		run := noerr.Get(report.ReadFile(filepath.Join(out, report.FileName)))(t)
		if run.Ended == nil || run.Ended.Time == 0 {
			t.Fatalf("%s: ended %+v", out, run.Ended)
		}
		return run
	}
	failed, good := filepath.Join(dir, "failed"), filepath.Join(dir, "good")
	if r := command(t, with(small, "--steps", "5", "--lr", "1e30", "--out",
		failed)...); r.code != exitFailed {
		t.Fatalf("%+v", r)
	}
	if run := kept(failed); run.Ended.How != "failed" ||
		!strings.HasPrefix(run.Ended.Why, "step 2: loss NaN") || run.Title != "mlp on synthetic" ||
		run.Last != 5 {
		t.Errorf("%+v: %+v", run.Ended, run)
	}
	must(t, "report", failed, "--out", filepath.Join(dir, "report.html"))
	frozen := with(small, "--stages", "2", "--balance", "3,3", "--checkpoint", "optimal", "--train-only",
		"fc", "--out", good)
	must(t, with(frozen, "--steps", "4")...)
	first := kept(good)
	if first.Ended.How != "finished" || first.Ended.Why != "" || first.Step != 3 {
		t.Errorf("%+v: step %d", first.Ended, first.Step)
	}
	for i := 0; i < len(first.Layers); i += max(first.Layers[i].Of, 1) {
		if l := first.Layers[i]; l.Forward <= 0 || (l.Backward > 0) != (l.Name == "fc") {
			t.Errorf("%+v", l)
		}
	}
	must(t, with(frozen, "--steps", "4", "--resume")...) // which has nothing left to do
	if run := kept(good); run.Ended.How != "finished" || run.Ended.Time <= first.Ended.Time ||
		run.Last != 4 || run.Step != 3 || run.Ran == nil {
		t.Errorf("%+v: %+v", run.Ended, run)
	}
}

// The page of a run that goes on is where the run says, ends with it, and a run that is resumed shows
// the steps before.
func TestDashboard(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	must(t, with(small, "--steps", "3", "--out", out)...)
	p := begin(t, nil, with(small, "--steps", "1000000", "--balance", "3,3", "--out", out, "--resume",
		"--dashboard", ":0")...)
	var url string
	for began := time.Now(); url == "" && time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
		if _, rest, ok := strings.Cut(p.stderr.String(), "dashboard: "); ok {
			url, _, _ = strings.Cut(rest, "\n")
		}
	}
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("no address in %s", p.stderr)
	}
	get := func(path string) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := noerr.Get(http.NewRequestWithContext(ctx, "GET", url+path, nil))(t)
		answer := noerr.Get(http.DefaultClient.Do(r))(t)
		defer answer.Body.Close()
		text := make([]byte, 400)
		n := noerr.Get(io.ReadFull(answer.Body, text))(t)
		if path == "" {
			rest := noerr.Get(io.ReadAll(answer.Body))(t)
			return string(text[:n]) + string(rest)
		}
		return string(text[:n])
	}
	if page := get(""); !strings.Contains(page, `"steps":[[1,0,`) ||
		!strings.Contains(page, `"title":"mlp on synthetic"`) {
		t.Errorf("the page is %d bytes without the first step", len(page))
	}
	if text := get("events?after=3.3.0"); !strings.Contains(text, "event: run\ndata: {") {
		t.Errorf("events: %s", text)
	}
	p.Process.Signal(os.Interrupt)
	p.end(t)
	if _, err := http.Get(url); err == nil {
		t.Error("the page is there after the run")
	}
}

// An address that is taken is said before anything is made.
func TestDashboardRefused(t *testing.T) {
	taken := noerr.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	out := filepath.Join(t.TempDir(), "run")
	for at, want := range map[string]string{
		taken.Addr().String(): ": bind: address already in use",
		"192.0.2.1:0":         "192.0.2.1:0: bind: cannot assign requested address",
		"8080":                "--dashboard 8080: want HOST:PORT",
	} {
		r := command(t, with(small, "--steps", "1", "--out", out, "--dashboard", at)...)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %+v, want %q", at, r, want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: --out was made", at)
		}
	}
}
