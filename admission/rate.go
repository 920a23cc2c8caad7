package admission

import "time"

// rateWindow is the time over which admissions are counted.
const rateWindow = 30

// rateMeter counts admissions in one-second buckets.
type rateMeter struct {
	counts [rateWindow]uint32
	sum    uint64
	last   int64 // the second the newest bucket stands for
}

func (m *rateMeter) advance(now Instant) {
	if sec := int64(now) / int64(time.Second); sec > m.last {
		m.roll(sec) // apart, so that what mostly happens is inlined
	}
}

func (m *rateMeter) roll(sec int64) {
	if sec-m.last >= rateWindow {
		m.counts = [rateWindow]uint32{}
		m.sum = 0
	} else {
		for s := m.last + 1; s <= sec; s++ {
			i := s % rateWindow
			m.sum -= uint64(m.counts[i])
			m.counts[i] = 0
		}
	}
	m.last = sec
}

func (m *rateMeter) add(now Instant) {
	m.advance(now)
	m.counts[m.last%rateWindow]++
	m.sum++
}

// perSecond returns the admissions a second over the window, or over the time
// since start when that is shorter, but at least a second.
func (m *rateMeter) perSecond(now, start Instant) float64 {
	m.advance(now)
	window := min(max(now.Sub(start), time.Second), rateWindow*time.Second)
	return float64(m.sum) / window.Seconds()
}
