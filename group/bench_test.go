package group_test

import (
	"context"
	"fmt"
	"testing"

	"penstock.example/group"
)

// BenchmarkGather gathers a MiB of each of three members over the control connections.
func BenchmarkGather(b *testing.B) {
	all := inProcess(b, config(b, 3))
	defer each(all, func(g *group.Group) error { return g.Close() })
	mine := make([]byte, 1<<20)
	b.SetBytes(3 << 20)
	for i := range b.N {
		for rank, err := range each(all, func(g *group.Group) error {
			_, err := g.Gather(context.Background(), fmt.Sprint(i), mine)
			return err
		}) {
			if err != nil {
				b.Fatalf("rank %d: %v", rank, err)
			}
		}
	}
}
