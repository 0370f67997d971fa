package schedule_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// edges reads a list such as 0>2,1>3.
func edges(t rapid.TB, list string) []schedule.Edge {
	t.Helper()
	return parse(t, "program whole stages=9 micro-batches=1 skips="+list).Skips
}

func TestGPipeNormalisesSkips(t *testing.T) {
	tests := []struct {
		name, given, want string
	}{
		{"in order", "0>2,0>3,1>3", "0>2,0>3,1>3"},
		{"out of order", "1>3,0>3,0>2", "0>2,0>3,1>3"},
		{"repeated", "0>3,0>2,0>3,0>3", "0>2,0>3"},
		{"neighbours have a link already", "2>3,0>2,0>1", "0>2"},
		{"only neighbours", "0>1,1>2,0>1", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			given := edges(t, tt.given)
			before := slices.Clone(given)
			p := gpipe(t, schedule.Config{Stages: 4, MicroBatches: 2, Skips: given})
			var want []schedule.Edge
			if tt.want != "" {
				want = edges(t, tt.want)
			}
			if diff := cmp.Diff(want, p.Skips); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(before, given); diff != "" {
				t.Errorf("the caller's list was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// Every pair of stages that is declared or neighbouring has a send and a receive each way for every
// micro-batch, no other has any, and what a computation needs of other stages is what it receives
// along its edges.
func TestGPipeTransfersAlongEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		p := drawPart(t, gpipe(t, config))
		g := p.Graph()
		for from := range p.Stages {
			for to := from + 1; to < p.Stages; to++ {
				edge := to == from+1 || slices.Contains(config.Skips, schedule.Edge{From: from, To: to})
				for i := range p.MicroBatches {
					for _, way := range []struct {
						part                  schedule.Phase
						receive, source, user schedule.Action
					}{
						{schedule.ForwardOnly,
							schedule.Action{Kind: schedule.ReceiveActivation, Stage: to, MicroBatch: i, Peer: from},
							schedule.Action{Kind: schedule.Forward, Stage: from, MicroBatch: i},
							schedule.Action{Kind: schedule.Forward, Stage: to, MicroBatch: i}},
						{schedule.BackwardOnly,
							schedule.Action{Kind: schedule.ReceiveGradient, Stage: from, MicroBatch: i, Peer: to},
							schedule.Action{Kind: schedule.Backward, Stage: to, MicroBatch: i},
							schedule.Action{Kind: schedule.Backward, Stage: from, MicroBatch: i}},
					} {
						want := edge && (p.Phase == schedule.Whole || p.Phase == way.part)
						id, got := g.IndexOf(way.receive)
						sent, sends := g.IndexOf(way.receive.Matching())
						if got != want || sends != want {
							t.Fatalf("%v is there: %v, its send: %v, want %v\n%v", way.receive, got, sends, want, p)
						}
						if !got {
							continue
						}
						if !slices.Contains(g.Deps[id], sent) {
							t.Fatalf("%v does not need its send, only %s", way.receive, texts(g, g.Deps[id]))
						}
						if source, _ := g.IndexOf(way.source); !slices.Contains(g.Deps[sent], source) {
							t.Fatalf("%v does not need %v, only %s", g.Actions[sent], way.source, texts(g, g.Deps[sent]))
						}
						user, _ := g.IndexOf(way.user)
						if !slices.Contains(g.Deps[user], id) {
							t.Fatalf("%v does not need %v", way.user, way.receive)
						}
					}
				}
			}
		}
	})
}

// Skips wait on nothing that the step would not wait for anyway: if transfers take no time, neither
// do they, on workers with one stage each.
func TestFreeSkipsCostNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		config.Worker = nil
		duration := freeTransfers(drawDurations(t, config.Stages))
		with := simulate(t, gpipe(t, config), duration).Makespan()
		config.Skips = nil
		if without := simulate(t, gpipe(t, config), duration).Makespan(); with != without {
			t.Fatalf("takes %v with skips, %v without", with, without)
		}
	})
}

func TestParseSkips(t *testing.T) {
	const header = "program whole stages=4 micro-batches=2 "
	for _, options := range []string{"skips=0>2", "skips=0>2,0>3,1>3", "skips=0>3,0>2,3>0,0>1,0>1", "capacity=1", "capacity=meet", "skips=0>2 capacity=12"} {
		if got := parse(t, header+options).String(); got != header+options+"\n" {
			t.Errorf("%q became %q", header+options, got)
		}
	}
	for _, tt := range []struct{ options, want string }{
		{"skips=", `word 5: "" is not a pair of stages, want skips such as skips=0>2,0>3`},
		{"skips=0>2,", `word 5: "" is not a pair of stages`},
		{"skips=02", `word 5: "02" is not a pair of stages`},
		{"skips=0>02", `word 5: skip "0>02": "02" is not a decimal number`},
		{"skips=-1>2", `word 5: skip "-1>2": "-1" is not`},
		{"skips=0>1>2", `word 5: skip "0>1>2": "1>2" is not`},
		{"skips=0>2;0>3", `word 5: skip "0>2;0>3": "2;0>3" is not`},
		{"skips=0>2 0>3", `word 6: "0>3" after the header`},
		{"skips=0>2 skips=0>3", `word 6: "skips=0>3" after the header`},
		{"capacity=1 skips=0>2", `word 6: "skips=0>2" after the header`},
		{"capacity=0", `word 5: "0", want meet or the number of values that may wait, from 1`},
		{"capacity=-1", `word 5: "-1", want meet`},
		{"capacity", `word 5: "capacity" after the header`},
		{"Skips=0>2", `word 5: "Skips=0>2" after the header`},
	} {
		p, err := schedule.Parse(header + tt.options)
		if err == nil {
			t.Errorf("%q is read as %v", tt.options, p)
		} else if !strings.Contains(err.Error(), "line 1, "+tt.want) {
			t.Errorf("%q: %v, want %s", tt.options, err, tt.want)
		}
	}
	if _, err := schedule.Parse("program whole stages=4 micro-batches=4194304 skips=0>2"); err == nil || !strings.Contains(err.Error(), "4 stages and 1 skips of 4194304") {
		t.Errorf("an absurd size: %v", err)
	}
}

// freeTransfers are durations of which sends and receives take none.
func freeTransfers(duration func(schedule.Action) time.Duration) func(schedule.Action) time.Duration {
	return func(a schedule.Action) time.Duration {
		if a.Kind.Transfer() {
			return 0
		}
		return duration(a)
	}
}
