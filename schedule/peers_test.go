package schedule_test

import (
	"testing"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

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
		text := must.Get(scheduled(t, tt.name, tt.devices, tt.virtual,
			schedule.Config{MicroBatches: tt.microBatches}).CSV())(t)
		must.Match(t, tt.file, text)
	}
}
