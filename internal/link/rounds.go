package link

import (
	"cmp"
	"slices"

	"penstock.example/schedule"
)

// rounds divides directed links between processes into rounds in which no process has two links. If all
// processes open their links round by round, they cannot deadlock. A process without a link in a round goes
// on to the next. The two directions of a pair are two links. Repeated links count once; a link from a
// process to itself is left out.
//
// Each link goes into the first round where both ends are free, short distances first. With d links per
// process there are at most 2d-1 rounds; with links between neighbours in a row there are 4.
func rounds(links []schedule.Edge) (list [][]schedule.Edge) {
	links = slices.Clone(links)
	slices.SortFunc(links, func(a, b schedule.Edge) int {
		return cmp.Or(cmp.Compare(max(a.From, a.To)-min(a.From, a.To), max(b.From, b.To)-min(b.From, b.To)),
			cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	for _, l := range slices.Compact(links) {
		if l.From == l.To {
			continue
		}
		busy := func(r []schedule.Edge) bool {
			return slices.ContainsFunc(r, func(o schedule.Edge) bool {
				return o.From == l.From || o.To == l.To || o.From == l.To || o.To == l.From
			})
		}
		at := slices.IndexFunc(list, func(r []schedule.Edge) bool { return !busy(r) })
		if at < 0 {
			at, list = len(list), append(list, nil)
		}
		list[at] = append(list[at], l)
	}
	return list
}
