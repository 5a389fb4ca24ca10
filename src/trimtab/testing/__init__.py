"""The contract suites: what every algorithm, engine, reward and recorder must do, for plug-in authors too."""
