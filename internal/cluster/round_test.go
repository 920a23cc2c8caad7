package cluster

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// The round trip is the time on the way: that until the other side's next beat does not
// count, which is most of it while there is nothing to say.
func TestRoundTripIsTheTimeOnTheWay(t *testing.T) {
	instant := func(ms int) admission.Instant {
		return admission.Instant(time.Duration(ms) * time.Millisecond)
	}
	s, p := &seat{roundAt: -instant(2000)}, &peer{}
	for _, x := range []struct{ sent, back, kept, want int }{
		{sent: 0, back: 92, kept: 90, want: 2},
		{sent: 100, back: 195, kept: 90, want: 2},   // the best of a second
		{sent: 1500, back: 1595, kept: 90, want: 5}, // of another second
		{sent: 1600, back: 1610, kept: 50, want: 0}, // more than there was
	} {
		p.fresh, p.kept = instant(x.sent), time.Duration(x.kept)*time.Millisecond
		s.timeRound(instant(x.back), p)
		if s.round != time.Duration(x.want)*time.Millisecond {
			t.Errorf("%+v: %v", x, s.round)
		}
	}
}
