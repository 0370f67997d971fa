package schedule_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

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
