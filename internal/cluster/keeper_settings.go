package cluster

import (
	"cmp"
	"fmt"

	"github.com/sluice-router/sluice/admission"
)

// settingsInForce are the settings of the gate: those of the member with the highest
// generation of its configuration; among these, which were loaded last.
type settingsInForce struct {
	digest   uint64
	from     Incarnation
	settings admission.Settings
}

func (s *seat) configure(c *Configuration) {
	s.config, s.configAt = c, s.k.m.now.Add(-max(c.Age, 0))
}

// newest is the member whose settings are to be in force; nil: none has any.
func (k *keeper) newest() (first *seat) {
	for _, s := range k.order {
		if s.config == nil {
			continue
		}
		if first == nil || cmp.Or(
			cmp.Compare(s.config.Generation, first.config.Generation),
			cmp.Compare(s.configAt, first.configAt),
			cmp.Compare(s.Incarnation, first.Incarnation),
		) > 0 {
			first = s
		}
	}
	return first
}

// configured puts the settings in force that are to be, and tells who differs.
func (k *keeper) configured() {
	s := k.newest()
	if s != nil && (k.settings.from == 0 || s.config.Digest != k.settings.digest) {
		k.settings = settingsInForce{s.config.Digest, s.Incarnation, s.config.Settings}
		k.m.event(LevelInfo, "the configuration of a member is in force for all", "member", s.Name, "generation", s.config.Generation, "digest", digest(s.config.Digest))
		if k.port != nil {
			settings := s.config.Settings
			k.do(admission.Step{Op: admission.StepReload, Settings: &settings})
			k.claims.dirty, k.shares.dirty = true, true
			k.settleShares()
		}
	} else if s != nil {
		k.settings.from = s.Incarnation
	}
	for _, s := range k.order {
		if s.config == nil || s.config.Digest == k.settings.digest {
			s.differsTold = 0
		} else if s.differsTold != s.config.Digest {
			s.differsTold = s.config.Digest
			k.m.event(LevelWarn, "the configuration of a member is another than the one in force", "member", s.Name,
				"generation", s.config.Generation, "digest", digest(s.config.Digest), "in_force", digest(k.settings.digest))
		}
	}
}

func (s *seat) differs() bool { return s.config != nil && s.config.Digest != s.k.settings.digest }

func digest(d uint64) string { return fmt.Sprintf("%016x", d) }
