package plan

import "context"

type StageConfig struct {
	MicroBatches int
	Limit        int64
}
type Stage struct {
	Feasible bool
	Plans    []Plan
	Peak     int64
	Time     float64
	Layer    int
}

func SolveStage(ctx context.Context, first, later Chain, o StageConfig) (Stage, error) {
	k := int64(o.MicroBatches)
	try := o.Limit
	var g int64
	for _, l := range first.Layers {
		g += l.WeightGradient
	}
	for range 60 {
		a, err := Solve(ctx, first, try, Options{})
		if err != nil {
			return Stage{}, err
		}
		if !a.Feasible {
			return Stage{Peak: a.Peak}, nil
		}
		ra, _ := Check(first, a.Ops)
		rb, err := Check(later, a.Ops)
		if err != nil {
			return Stage{}, err
		}
		peak := (k-1)*ra.Held + ra.Peak
		if k > 1 {
			peak = max(peak, max(k-2, 0)*ra.Held+rb.Peak+g)
		}
		if o.Limit == 0 || peak <= o.Limit {
			s := Stage{Feasible: true, Peak: peak}
			for range k {
				s.Plans = append(s.Plans, a)
			}
			return s, nil
		}
		try -= max((peak-o.Limit)/k, 1)
		if try <= 0 {
			break
		}
	}
	return Stage{Peak: o.Limit * 2}, nil
}
