package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/torch"
)

// A process may have several replicas of the pipeline. Each of them is then a member of the group, as
// a process is elsewhere: with a model, a pipe, a loop and devices of its own. They have the data
// set in common. Nothing that a member does depends on which process it is in.
//
//	penstock train --replicas 2 --stages 2      process 0   member 0: cpu:0 cpu:1   member 1: cpu:2 cpu:3

// datasets are those of a run, to train and to test with.
type datasets struct{ training, test data.Dataset }

// share is how many members of the group are in each of so many processes, and whether replicas and
// processes can be shared out evenly.
func (f *groupFlags) share(processes int) (here int, even bool) {
	return max(f.replicas/processes, 1), f.replicas%processes == 0 || processes%f.replicas == 0
}

// countMembers finds how many members of the group are in this process, and which they are.
func (p *plan) countMembers() error {
	processes := max(p.member.Size, 1)
	here, even := p.share(processes)
	switch {
	case !even && processes >= p.replicas:
		return badUsage("--replicas %d: %d processes cannot be shared out evenly; want a number of processes that it divides",
			p.replicas, processes)
	case !even:
		return badUsage("--replicas %d: %d processes cannot share them out evenly; want a multiple of %[2]d", p.replicas, processes)
	case p.batch < p.replicas:
		return badUsage("--replicas %d: a --batch of %d has fewer rows; want at least one for each", p.replicas, p.batch)
	}
	if p.here = here; p.here > 1 {
		p.member.Rank, p.member.Size = p.here*p.member.Rank, p.replicas
	}
	p.grouped = p.member.Size > 1
	return nil
}

// width is how far the devices of one replica of this process are from those of the next.
func (p *plan) width() (n int) {
	for _, d := range p.config.Devices {
		n = max(n, d.Index+1)
	}
	return n
}

// checkDevices checks that there are devices for all replicas of this process.
func (p *plan) checkDevices(*pflag.FlagSet) error {
	if n := p.width(); n*p.here > torch.MaxCPU && p.here > 1 {
		return badUsage("--replicas %d: %d in one process, each with devices up to %v, take more than the %d that there are; want more processes",
			p.replicas, p.here, torch.CPU(n-1), torch.MaxCPU)
	}
	return nil
}

// members are the plans of the members of the group that are in this process.
func (p plan) members() (all []plan) {
	p.read = sync.OnceValues(func() (out datasets, err error) {
		out.training, out.test, err = data.Open(p.dataName, p.dataDir, p.data)
		torch.TrimProcess() // reading took more than what was read
		return out, ofData(err)
	})
	within := make([]*group.Group, p.here)
	if p.grouped && p.here == p.member.Size {
		within = group.Local(p.here)
	}
	for k := range p.here {
		m := p
		m.within, m.member.Rank = within[k], p.member.Rank+k
		m.config.Devices = slices.Clone(p.config.Devices)
		m.bytes = maps.Clone(p.bytes)
		for i, d := range p.config.Devices {
			m.config.Devices[i].Index += k * p.width()
			if bytes, has := p.bytes[d]; has {
				m.bytes[m.config.Devices[i]] = bytes
			}
		}
		all = append(all, m)
	}
	return all
}

// together runs a member of the group in this process each, and returns what ended them: the error
// of the one that failed by itself, as those of the others only say so.
func together(members []plan, run func(plan) error) error {
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for k, m := range members {
		all.Go(func() { errs[k] = run(m) })
	}
	all.Wait()
	var first error
	for k, err := range errs {
		switch {
		case err == nil:
		case !ofAnother(err):
			if k > 0 {
				err = &remedyError{err, fmt.Sprintf("replica %d: %s", members[k].member.Rank, message(err))}
			}
			return err
		case first == nil:
			first = err
		}
	}
	return first
}

// ofAnother says whether an error tells of the failure of another member.
func ofAnother(err error) bool {
	var met *group.MemberError
	var failed *group.FailedError
	var lost *group.LostError
	return errors.As(err, &met) || errors.As(err, &failed) || errors.As(err, &lost)
}
