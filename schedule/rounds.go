package schedule

import (
	"cmp"
	"slices"
)

// Rounds divides directed links between processes into rounds in which no process is in two, so
// that all processes can open their links one after another, each with the other end, and none
// waits in a circle. A process that is in no link of a round goes on to the next one. Both directions
// of a pair are two links. Repeated links count once, and a link to oneself is none.
//
// Links go into the first round that has room, the shortest ways first: d links a process at most
// take at most 2d-1 rounds. Links of neighbours in a row take 4.
func Rounds(links []Edge) (rounds [][]Edge) {
	links = slices.Clone(links)
	slices.SortFunc(links, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(max(a.From, a.To)-min(a.From, a.To), max(b.From, b.To)-min(b.From, b.To)),
			cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	for _, l := range slices.Compact(links) {
		if l.From == l.To {
			continue
		}
		busy := func(r []Edge) bool {
			return slices.ContainsFunc(r, func(o Edge) bool {
				return o.From == l.From || o.To == l.To || o.From == l.To || o.To == l.From
			})
		}
		at := slices.IndexFunc(rounds, func(r []Edge) bool { return !busy(r) })
		if at < 0 {
			at, rounds = len(rounds), append(rounds, nil)
		}
		rounds[at] = append(rounds[at], l)
	}
	return rounds
}
