package main

import (
	"fmt"
	"os"

	"github.com/sluice-router/sluice/internal/config"
)

// checkTokenizers refuses to start with paths of tokenizers that are not there.
func checkTokenizers(cfg *config.Config) error {
	for _, p := range cfg.Text.TokenizerPaths {
		if _, err := os.Stat(p.Path()); err != nil {
			return fmt.Errorf("--tokenizer-path: %w", err)
		}
	}
	return nil
}
