package schedule_test

import (
	"strings"
	"testing"
	"time"

	"penstock.example/schedule"
)

// The numbers of stages on each device, micro-batches and devices for which
// torch.distributed.pipelining tests its schedules. It skips those whose micro-batches cannot be
// divided, expects an error of schedules on a V for other than 2 stages on each device, and of
// DualPipeV for fewer micro-batches than stages.
func TestShapesOfPipelining(t *testing.T) {
	for _, shape := range [][3]int{
		{2, 2, 2}, {2, 4, 4}, {2, 8, 2}, {2, 8, 4}, {2, 8, 8}, {4, 4, 4}, {4, 8, 4}, {4, 8, 8}, {4, 16, 4}, {4, 32, 4}, {4, 64, 4},
		{4, 16, 16}, {4, 32, 32}, {4, 128, 64}, {3, 2, 2}, {3, 8, 2}, {3, 12, 4}, {4, 6, 3}, {4, 10, 5}, {2, 3, 4}, {2, 4, 4}, {2, 10, 4}, {2, 15, 4},
	} {
		virtual, microBatches, devices := shape[0], shape[1], shape[2]
		for _, s := range schedule.Schedules() {
			p, err := s.Program(devices, virtual, schedule.Config{MicroBatches: microBatches})
			if s.Virtual > 0 && s.Virtual != virtual {
				if err == nil {
					t.Errorf("%s has %d stages on each device", s.Name, virtual)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s, %v: %v", s.Name, shape, err)
				continue
			}
			if err := schedule.Check(p, schedule.Limits{Meet: true, InOrder: true}); err != nil {
				t.Errorf("%s, %v: %v", s.Name, shape, err)
			}
		}
	}
}

// The programs that torch.distributed.pipelining's suite compares with files. The golden files are
// what is made here; when they were written they had every computation of those files, in the same
// order. (Where a forward there overlaps with a backward it comes first here, and the file of zero
// bubble has the letter B for what is I today.)
func TestProgramsOfPipelining(t *testing.T) {
	for _, tt := range []struct {
		file, name                     string
		devices, virtual, microBatches int
	}{
		{"pipelining_dualpipev_4rank_10mb.csv", "dualpipe-v", 4, 2, 10},
		{"pipelining_zb1p_2rank_2stagep.csv", "interleaved-zb", 2, 2, 8},
	} {
		text, err := scheduled(t, tt.name, tt.devices, tt.virtual, schedule.Config{MicroBatches: tt.microBatches}).CSV()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, tt.file, text)
	}
}

// Transfers are added to the two programs for which torch.distributed.pipelining's suite does so. A
// receive stands where it is wanted, or before a send where the other worker sends too. There it
// stands where the send is done in steps of equal length, so that a worker may wait for what it
// does not want yet; if every action takes a step, that takes 11 and 24 steps, and this 12 and 27.
// Where transfers take no time of the worker, both take as long as the computations alone.
func TestTransfersOfPipelining(t *testing.T) {
	for _, tt := range []struct {
		text         string
		want         []string // by worker
		steps, alone time.Duration
	}{
		{"0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n", []string{
			"0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1",
			"0>1F0 1F0 1B0 0>1F1 1B0>0 1F1 1B1 1B1>0",
		}, 12, 6},
		{"0F0,0F1,,3F0,3I0,3F1,3I1,0I0,3W0,0I1,3W1,0W0,0W1\n,1F0,2F0,1F1,2F1,2I0,1I0,2I1,1I1,2W0,2W1,1W0,1W1\n", []string{
			"0F0 0F0>1 0F1 0F1>1 2>3F0 3F0 3I0 2>3F1 3B0>2 3F1 3I1 1>0B0 3B1>2 0I0 3W0 1>0B1 0I1 3W1 0W0 0W1",
			"0>1F0 1F0 1F0>2 1>2F0 2F0 0>1F1 2F0>3 1F1 1F1>2 1>2F1 2F1 2F1>3 3>2B0 2I0 2B0>1 2>1B0 1I0 1B0>0 3>2B1 2I1 2B1>1 2>1B1 1I1 1B1>0 2W0 2W1 1W0 1W1",
		}, 27, 13},
	} {
		p, err := schedule.ParseCSV(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := schedule.Check(p, schedule.Limits{Meet: true, InOrder: true}); err != nil {
			t.Error(err)
		}
		worker := map[int]int{}
		for w, actions := range p.Workers {
			var words []string
			for _, a := range actions {
				worker[a.Stage] = w
				words = append(words, a.String())
			}
			if got := strings.Join(words, " "); got != tt.want[w] {
				t.Errorf("worker %d:\n%s, want\n%s", w, got, tt.want[w])
			}
		}
		steps := simulate(t, p, func(a schedule.Action) time.Duration {
			if a.Kind.Transfer() && worker[a.Stage] == worker[a.Peer] {
				return 0 // not an action there
			}
			return 1
		}).Makespan()
		alone := simulate(t, p, schedule.Unit).Makespan() / schedule.Unit(schedule.Action{})
		if steps != tt.steps || alone != tt.alone {
			t.Errorf("takes %d steps, %d for the computations alone; want %d, %d", steps, alone, tt.steps, tt.alone)
		}
	}
}
