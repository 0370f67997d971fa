package plan

import (
	"fmt"
	"slices"

	"penstock.example/internal/arg"
)

func refuse(field string, value any, problem, remedy string) error {
	return &arg.ConfigError{Of: "plan", Field: field, Value: value, Problem: problem, Remedy: remedy}
}

// check returns a *arg.ConfigError for a field of the problem that makes no sense.
func (p Problem) check() error {
	if err := arg.AtLeast("plan", "MicroBatches", p.MicroBatches, 1); err != nil {
		return err
	}
	if len(p.Stages) == 0 {
		return refuse("Stages", len(p.Stages), "", "want at least one")
	}
	for i, d := range p.Devices {
		switch {
		case d.Name == "" || slices.ContainsFunc(p.Devices[:i], func(o ProblemDevice) bool { return o.Name == d.Name }):
			return refuse("Devices", d.Name, fmt.Sprintf("device %d has this name", i),
				"want a name that no other has")
		case d.Limit < 0:
			return refuse("Devices", d.Limit, "the limit of "+d.Name, "want a number of bytes, or 0 for none")
		case d.Live < 0:
			return refuse("Devices", d.Live, "the bytes that are live on "+d.Name, "want 0 or more")
		}
	}
	if p.Larger < 0 || p.Larger > p.MicroBatches {
		return refuse("Larger", p.Larger, "",
			fmt.Sprintf("want the number of micro-batches of the most rows, at most %d, or 0 for all", p.MicroBatches))
	}
	for i, s := range p.Skips {
		if s.From < 0 || s.From >= s.To || s.To >= len(p.Stages) {
			return refuse("Skips", fmt.Sprint(s.From, " to ", s.To),
				fmt.Sprintf("the stages of skip %d", i),
				fmt.Sprintf("want an earlier and a later one of %d", len(p.Stages)))
		}
	}
	for i, t := range p.Ties {
		if t.Earlier < 0 || t.Earlier >= t.Later || t.Later >= len(p.Stages) {
			return refuse("Ties", fmt.Sprint(t.Earlier, " and ", t.Later),
				fmt.Sprintf("the stages of tie %d", i),
				fmt.Sprintf("want an earlier and a later one of %d", len(p.Stages)))
		}
	}
	planned := make([]int, len(p.Devices)) // stages of each device, with the policy Optimal and others
	others := make([]int, len(p.Devices))
	for i, s := range p.Stages {
		switch {
		case s.Device < 0 || s.Device >= len(p.Devices):
			return refuse("Stages", s.Device, fmt.Sprintf("the device of stage %d", i),
				fmt.Sprintf("want an index below %d", len(p.Devices)))
		case !slices.Contains(Policies, s.Policy):
			return refuse("Stages", string(s.Policy), fmt.Sprintf("the policy of stage %d", i),
				fmt.Sprintf("want one of %v", Policies))
		case s.Layers < 1:
			return refuse("Stages", s.Layers, fmt.Sprintf("the layers of stage %d", i), "want at least 1")
		case s.Policy == Optimal:
			planned[s.Device]++
		default:
			others[s.Device]++
		}
	}
	for i, d := range p.Devices {
		switch {
		case planned[i] > 0 && others[i] > 0:
			return refuse("Stages", string(Optimal),
				"the policy of some stages on "+d.Name+", whose memory is planned as one",
				"want it for all stages of a device, or for none")
		case planned[i]+others[i] == 0:
			return refuse("Devices", d.Name, "it has no stage", "want those alone that have one")
		}
	}
	return nil
}
