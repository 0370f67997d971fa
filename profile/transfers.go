package profile

// copies are the transfers timed so far.
type copies struct {
	bytes   int64
	seconds float64
}

// transfers times copies of flows to the other device.
func (l *scan) transfers(flows []flow) {
	for _, f := range flows {
		if f.bytes == 0 {
			continue
		}
		var times timed
		for n := (count{Config: &l.Config}); n.more(); {
			took := l.took(l.peer, func() { l.peer.CopyHere(f.t) })
			if n.add(took) {
				times = append(times, took)
			}
			l.peer.Close()
		}
		l.f.copies.bytes += f.bytes
		l.f.copies.seconds += times.typical().Seconds()
	}
}

// perByte is the mean over all bytes, so large transfers, which matter most, count most.
func (c copies) perByte() float64 {
	if c.bytes == 0 {
		return 0
	}
	return c.seconds / float64(c.bytes)
}
