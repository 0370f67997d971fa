package command

import (
	"os"
	"path/filepath"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/schedule"
)

// TestSchedules: a run ends with the same weights under every schedule that has a name, on as many
// devices as its stages take, and under a program from a file.
func TestSchedules(t *testing.T) {
	args := with(small, "--steps", "2")
	want := sha(t, args...)
	for _, s := range schedule.Schedules() {
		flags := []string{"--schedule", s.Name, "--balance", "1,2,1,2"}
		devices := 4
		if s.Virtual != 1 {
			flags, devices = append(flags, "--virtual", "2"), 2
		}
		steps, done := lines(t, must(t, with(with(args, flags...), "--format", "json")...).stdout)
		if done.ParamsSHA256 != want {
			t.Errorf("%v: weights %s, want %s", flags, done.ParamsSHA256, want)
		}
		if got := len(steps[0].PeakBytes); got != devices {
			t.Errorf("%v: on %d devices, want %d", flags, got, devices)
		}
	}
	program := noerr.Get(schedule.OneFOneB(schedule.Config{Stages: 2, MicroBatches: 4}))(t)
	for _, text := range []string{program.String(),
		"0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1I1,1F2,1I2,1W1,1W2,1F3,1B3\n",
		"0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3,0REDUCE_GRAD\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,1REDUCE_GRAD\n"} {
		file := filepath.Join(t.TempDir(), "program")
		noerr.Do(t, os.WriteFile(file, []byte(text), 0o666))
		if got := sha(t, with(args, "--schedule", file, "--balance", "3,3")...); got != want {
			t.Errorf("%s: weights %s, want %s", text, got, want)
		}
	}
}
