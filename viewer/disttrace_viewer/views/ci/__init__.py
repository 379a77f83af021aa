"""Reports in the forms that CI systems read: annotations of GitHub, JUnit's XML, SARIF."""
