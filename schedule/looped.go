package schedule

// BreadthFirst returns the program that goes through the stages of each device one after the other,
// each with all micro-batches: forward from the first stage to the last, then backward from the
// last to the first. The stages of P devices go round ([Loop]). For 2 devices with 2 stages each
// and 3 micro-batches:
//
//	worker 0  0F0 0F1 0F2 2F0 2F1 2F2 .   .   2B0 2B1 2B2 0B0 0B1 0B2
//	worker 1  .   1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2 .
//
// With V stages on each device it is idle for P - 1 of VM + P - 1 forwards and backwards of a stage
// if M is at least P, and holds all VM of them (Lamy-Poirier, 2022, arXiv:2211.05953). Unlike
// there, backward ascends through the micro-batches, which takes as long.
func BreadthFirst(config Config) (*Program, error) {
	return build("bfs", config, looped, func(b *builder) {
		for c := range b.chunks {
			for i := range config.MicroBatches {
				b.forward(c, i)
			}
		}
		for c := len(b.chunks) - 1; c >= 0; c-- {
			for i := range config.MicroBatches {
				b.backward(c, i)
			}
		}
	})
}

// Interleaved returns the program of 1F1B on devices with several stages each, which go round
// ([Loop]). Micro-batches go forward in groups, each through all stages of a device before the
// next; backward likewise, from the last stage. For 2 devices with 2 stages each and 4
// micro-batches:
//
//	worker 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
//	worker 1  .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 .
//
// P devices with V stages each have max(1, M div P) groups, as equal as can be, the larger first;
// let g be the size of the first. Device r runs min(VM, (V-1)g + 2(P-1-r)) forwards, then a forward
// and a backward in turn, then the backwards that are left. It is idle for P - 1 of VM + P - 1
// forwards and backwards of a stage if M is at least P, and holds min(VM, (V-1)g + 2(P-1-r) + 1) of
// them (Narayanan et al., 2021, arXiv:2104.04473, section 2.2.2).
func Interleaved(config Config) (*Program, error) {
	return build("interleaved", config, looped, func(b *builder) {
		l := b.loop()
		for r := range l.devices {
			list := l.steps(r, Forward)
			back := l.steps(r, Backward)
			warmup := min(len(list), (l.virtual-1)*l.first+2*(l.devices-1-r))
			for k := range len(list) + warmup {
				if k < len(list) {
					b.perform(list[k])
				}
				if k >= warmup {
					b.perform(back[k-warmup])
				}
			}
		}
	})
}

// InterleavedZeroBubble returns the program of [Interleaved] with backwards in two parts: the
// gradients of the weights fill what would be idle. For 2 devices with 2 stages each and 4
// micro-batches:
//
//	worker 0  0F0 0F1 2F0 2F1 .   2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
//	worker 1  .   1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3
//
// Device r runs min(VM, (V-1)g + P-1-r) forwards before the first backward. The gradients of the
// weights follow the gradients of the inputs, r micro-batches later. Where forwards and both parts
// take as long as each other, it is idle for P - 1 of 3VM + P - 1 of them if M is at least P. A
// device holds min(VM, (V-1)g + P) stages' micro-batches, min(VM, (V-1)g + P-r) of them whole
// (PyTorch's ScheduleInterleavedZeroBubble; Qi et al., 2023, arXiv:2401.10241).
func InterleavedZeroBubble(config Config) (*Program, error) {
	return build("interleaved-zb", config, looped, func(b *builder) {
		l := b.loop()
		for r := range l.devices {
			b.behind(l.steps(r, Forward), l.steps(r, BackwardInput), l.steps(r, BackwardWeight),
				(l.virtual-1)*l.first+l.devices-1-r, r)
		}
	})
}

// loop is how the chunks of a looped schedule are laid out.
type loop struct {
	devices, virtual int
	groups           []int // how many micro-batches each has
	first            int   // of the first group, which is as large as any
}

func (b *builder) loop() loop {
	l := loop{devices: len(b.order)}
	l.virtual = len(b.chunks) / l.devices
	m := b.config.MicroBatches
	groups := max(1, m/l.devices)
	for j := range groups {
		size := m / groups
		if j < m%groups {
			size++
		}
		l.groups = append(l.groups, size)
	}
	l.first = l.groups[0]
	return l
}

// steps lists the computations of one kind on a device: group after group, through its chunks
// upwards if they are forwards, downwards otherwise.
func (l loop) steps(r int, kind Kind) []step {
	var list []step
	from := 0
	for _, size := range l.groups {
		for v := range l.virtual {
			if kind != Forward {
				v = l.virtual - 1 - v
			}
			for i := range size {
				list = append(list, step{kind, v*l.devices + r, from + i})
			}
		}
		from += size
	}
	return list
}
