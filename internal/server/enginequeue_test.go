package server

import (
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

func TestEngineQueueIsReportedAgainstRoom(t *testing.T) {
	busy := &fleet.ReportedInfo{Running: 4, Waiting: 2, UsedTokens: 6455, AgeSeconds: 1.5}
	d := doubtOf(&admission.RankStats{Room: true}, busy)
	if d == nil || *d != (doubtDoc{Waiting: 2, Running: 4, UsedTokens: 6455, AgeMS: 1500}) {
		t.Errorf("a rank with room whose engine has a queue: %+v", d)
	}
	d = doubtOf(&admission.RankStats{Room: true}, &fleet.ReportedInfo{Running: 4, WaitingTokens: 900})
	if d == nil || *d != (doubtDoc{WaitingTokens: 900, Running: 4}) {
		t.Errorf("a rank with room whose engine tells only the tokens that wait: %+v", d)
	}
	for name, d := range map[string]*doubtDoc{
		"without room":     doubtOf(&admission.RankStats{}, busy),
		"nothing waits":    doubtOf(&admission.RankStats{Room: true}, &fleet.ReportedInfo{Running: 4}),
		"nothing is known": doubtOf(&admission.RankStats{Room: true}, nil),
	} {
		if d != nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
